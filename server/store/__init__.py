"""What the coordinator remembers: rows and blobs."""
