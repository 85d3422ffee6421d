"""The worker process, and the numeric jobs that it does: files in, files and numbers out."""
