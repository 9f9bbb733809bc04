"""Rollouts of a model behind an OpenAI-compatible server (vLLM, SGLang): turn loop, prompts and tags of training."""
