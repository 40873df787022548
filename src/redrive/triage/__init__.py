"""Dead letters: looking at them and driving them back."""
