"""The experiments of the Universal Set Transformer paper, re-runnable: one module and one YAML file each."""
