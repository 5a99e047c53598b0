"""Capture: what runs inside user code. Nothing here may raise, block or change what the user sees."""
