"""One public function per command: settings in, a typed result out.  This is the Python API.

A task takes ``settings`` or sections as keywords (``model={"width": 64}``), prints nothing, and tells its progress to a
callback.  Paths may be text.  The package ``socialx`` names them all: ``socialx.train`` and so on.
"""
