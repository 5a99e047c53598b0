"""What every other package may import; imports nothing of ours."""
