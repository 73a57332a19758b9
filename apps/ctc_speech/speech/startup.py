"""Imported first by scripts: linattn_lab's preparations."""

import linattn_lab.startup
import linattn_lab.threads  # noqa: F401
