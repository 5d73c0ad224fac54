"""vLLM: as a server of ours in a process of its own, or its engine inside this process."""
