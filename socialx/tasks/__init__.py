"""The Python API: one public function per command, from settings to a typed result.

A task takes ``settings`` or sections as keywords (``model={"width": 64}``), prints nothing, and reports progress to a
callback.  Paths may be text.  The package ``socialx`` exports every task: ``socialx.train`` and so on.
"""
