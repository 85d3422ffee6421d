"""What devices download: byte ranges, compressed forms of blobs and deltas between versions."""
