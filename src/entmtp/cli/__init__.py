"""The command: one file per verb. Knows everything below; nothing knows it."""
