"""Load generation and measurement against any OpenAI-compatible server, built to survive scrutiny.

What is measured is defined in `metrics`, what makes a run void in `verdict`, how requests are due in
`arrivals` and `traces`. Nothing here serves requests, and nothing but the command line imports it.
"""
