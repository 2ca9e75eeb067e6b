"""Answers to questions about datasets: are two alike, is one sound, why is one slow."""
