"""Messages and their JSON, protobuf and Arrow codecs. The daemon and its clients both use them.

`messages`, `access_messages` and `bulk_messages` are the vocabulary, `content` chooses a codec for a request. Nothing
here knows HTTP or queues. The package exports nothing itself, so that a client imports only the codecs it uses.
"""
