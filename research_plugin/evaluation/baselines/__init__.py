"""The baselines that search more than once, one module each."""
