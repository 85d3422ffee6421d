"""Where rows come from: files, functions, arrays and pipelines, checked against a schema."""
