"""``research-plugin chat``: questions to a served model, whose turns appear while it writes them."""
