"""The ten stages: `table` lists them, `execute` does one, `facts` says what they depend on.

A stage's function here only reads and writes in the run folder, around the plain function that does its work.
"""
