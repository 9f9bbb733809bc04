"""Reads what a run wrote and shows it. Never imports veRL."""
