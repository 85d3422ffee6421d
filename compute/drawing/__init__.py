"""Graphs as pictures: DOT text for Graphviz, and SVG that needs nothing but a browser."""
