"""Where virtual clients work: threads, worker processes, one graph for many clients, a Ray cluster."""
