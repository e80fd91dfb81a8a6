"""What every command that reads and writes files does: folders, locks, lines, signals, processes."""
