"""A generator of corrupted and odd inputs, and a runner that gives each of them to the commands that read it."""
