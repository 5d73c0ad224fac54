"""Models of a Hugging Face hub: finding, choosing and bringing their files. Everything here blocks.

Our own client, because the hub's library (2.4) does not compare what it got with the published
checksums, and begins anew with every file that an earlier run did not finish.
"""
