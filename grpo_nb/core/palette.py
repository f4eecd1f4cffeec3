"""Colours that the figures share: those of Okabe and Ito, told apart with any colour vision."""

BLUE = "#0072B2"
VERMILION = "#D55E00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
ORANGE = "#E69F00"
SKY_BLUE = "#56B4E9"
BLACK = "#000000"
#: Order in which curves get their colours.
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY_BLUE, BLACK)

#: Text, text of less weight, and grid lines.
INK = "#333333"
SOFT_INK = "#666666"
GRID = "#EEEEEE"
