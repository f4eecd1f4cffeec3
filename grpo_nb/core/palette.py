"""Colours that the figures share, readable on white pages and on dark ones.

Each colour has a contrast of at least 4.3:1 against white (#FFFFFF) and against JupyterLab's dark
background (#111111). About 4.35 is the largest contrast that one colour can have against both
backgrounds. The hues are those of Okabe and Ito, which can be told apart with any colour vision.
"""

BLUE = "#007FC6"
VERMILION = "#C75800"
GREEN = "#008A65"
PURPLE = "#BE538E"
OCHRE = "#A27000"
VIOLET = "#8A66C8"
GREY = "#797979"
#: Order in which curves get their colours.
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, OCHRE, VIOLET, GREY)

#: Text, axes and grid lines.
INK = GREY
