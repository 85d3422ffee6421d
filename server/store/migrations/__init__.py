"""The history of the schema, one Alembic revision per change."""
