"""The requests of a program: what they took, what they could have taken, and the same again."""
