"""Hugging Face Transformers, one request at a time: the control that batching engines are compared with.

Two halves that share `fields` and the wire package. Ours: `backend`, `life`, `calls`. The engine
program's, which may run in another Python environment: `host`, `service`, `exchange`, `generator`,
`text`.
"""
