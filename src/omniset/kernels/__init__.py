"""The fast forms of what the layers compute, each beside the plain one that it equals to rounding."""
