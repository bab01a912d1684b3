"""Pictures as programs read them, for tests."""

import xml.etree.ElementTree as ElementTree

from kinst_emu.explain.view.svg import svg


def values_in(text):
    """Every attribute and every text of a picture, as a browser would find them."""
    found = {}
    for number, element in enumerate(ElementTree.fromstring(text).iter()):
        found |= {(number, name): value for name, value in element.attrib.items()}
        if not len(element):
            found[number, ""] = element.text or ""
    return found


def whole(pictures, number, step=""):
    """A moment's picture with all that any moment has, as one that moves begins."""
    return svg(pictures.scenes.scene(number, step), pictures.layout, styled=False, every=True)
