"""Any OpenAI-compatible server by URL as an engine: vLLM, SGLang, Ollama, llama-server, hosted ones."""
