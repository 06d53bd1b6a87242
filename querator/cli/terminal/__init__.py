"""What a person sees and types: streams, rendered answers, errors, questions, progress, and the session of a command.

Nothing here knows a noun or a verb.
"""
