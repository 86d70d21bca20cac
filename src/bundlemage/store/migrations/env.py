"""Alembic runs this file; the connection, with its lock and its transaction, comes from `store.migrate`."""

from __future__ import annotations

from alembic import context

context.configure(**context.config.attributes["configuration"])
context.run_migrations()
