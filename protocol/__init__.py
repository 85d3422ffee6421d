"""What crosses the wire: messages, schemas, tensor files, layouts, codecs."""
