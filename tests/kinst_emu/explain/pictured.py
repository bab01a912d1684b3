"""Access to the contents of SVG pictures for tests."""

import xml.etree.ElementTree as ElementTree

from kinst_emu.explain.view.svg import svg


def values_in(text):
    """Return all attributes and texts of a picture, keyed by element number and attribute name."""
    found = {}
    for number, element in enumerate(ElementTree.fromstring(text).iter()):
        found |= {(number, name): value for name, value in element.attrib.items()}
        if not len(element):
            found[number, ""] = element.text or ""
    return found


def whole(pictures, number, step=""):
    """Return the SVG picture of one moment, including the hidden elements of all other moments."""
    return svg(pictures.scenes.scene(number, step), pictures.layout, styled=False, every=True)
