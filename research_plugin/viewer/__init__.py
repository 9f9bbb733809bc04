"""Shows the rollouts of a run: in one HTML file, served live, or in a terminal. Never imports veRL."""
