"""Measure and demonstrate a server from outside, over HTTP, in processes of its own.

``client.py`` asks and times, ``process.py`` starts and stops servers, ``replay.py`` turns recorded
conversations into requests, ``demo.py`` compares cold, RAM and SSD bit for bit, ``ttft.py`` and the
other tables measure. Figures of single rooms (names, plan, decode) are in ``rooms.py``.
"""
