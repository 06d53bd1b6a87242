"""Long work on partitions: migrate, resize, backup, restore, verify, compact; and the runner that resumes it.

Each kind of job has a module with its `CALLS` and `KINDS`. Jobs work on the registry and never import the service.
"""
