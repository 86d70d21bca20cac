"""Alembic runs this file. `store.migrate` provides the connection, with its lock and its transaction."""

from __future__ import annotations

from alembic import context

context.configure(**context.config.attributes["configuration"])
context.run_migrations()
