"""A store of runs, and the page and feeds that are made from stored runs.

Importing what writes a run (`records`, `machine`, `store`) loads nothing but the standard library and this
package, so that a machine with torch and pytest alone can write one. Plotly and jinja2 are loaded by the
page, when it is made.
"""
