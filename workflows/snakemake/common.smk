"""What the modules share."""

import shlex


def of_attempt(name, least):
    """A resource that grows with each attempt."""
    return lambda wildcards, attempt: attempt * config.get(name, least)


def resume(wildcards, attempt):
    """1 where a job is tried again: what it has done is kept in its folder."""
    return int(attempt > 1)


def given(*names):
    """Files of the config that are given, by name; the others are left away."""
    return {name: config[name] for name in names if config.get(name)}


def words(options):
    """Options with their values, as words of the shell."""
    return " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in options.items())
