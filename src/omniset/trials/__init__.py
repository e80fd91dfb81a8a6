"""What every comparison of methods needs: the work that is done is kept, whatever is compared."""
