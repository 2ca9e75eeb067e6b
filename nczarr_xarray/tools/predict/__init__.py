"""What reads cost over a network."""
