"""Options with which a command on sets takes a second: for tests of what it reads and writes."""

QUIET = ["--progress=false", "--device=cpu"]
TINY = [
    "--method=ust",
    "--dim=8",
    "--num_heads=2",
    "--depth=1",
    "--epochs=1",
]
