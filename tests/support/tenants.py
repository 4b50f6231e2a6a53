"""Lookup functions whose rows an environment variable decides, or a token."""

import os
import threading


def of_the_tenant(id):
    return [{"id": id, "name": os.environ["SHOP_TENANT"]}]


class Client:
    def __init__(self, url, token="a"):
        self.url, self.token, self.lock = url, token, threading.Lock()

    def __repr__(self):
        raise AssertionError("it may show a secret, or an address")

    __eq__ = __hash__ = __getattr__ = None

    def find(self, key):
        return key
