"""Evaluations: methods against a served model, what they score, and the judge."""
