"""llama.cpp: a child process that hosts it, and what its HTTP dialect needs of us."""
