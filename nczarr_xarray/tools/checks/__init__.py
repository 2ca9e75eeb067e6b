"""The table of checks, and what is checked."""
