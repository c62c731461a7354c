"""Objects of a class, found in a process that holds anything."""

import pytest
import torch

from vario.backends.torch.loop.live_instances import live_instances, one_look


class _Unfriendly(type):
    """Its classes cannot be hashed, nor compared."""

    def __eq__(cls, other):
        raise AssertionError("looking for modules compares no classes")

    __hash__ = None


def test_objects_of_the_class_and_of_those_derived_from_it_are_found():
    class Own(torch.nn.Linear):
        pass

    own, plain, other = Own(2, 2), torch.nn.Linear(2, 2), torch.nn.ReLU()
    found = set(map(id, live_instances(torch.nn.Linear)))
    assert {id(own), id(plain)} <= found
    assert id(other) not in found


def test_no_code_of_other_objects_runs():
    class Odd(metaclass=_Unfriendly):
        @property
        def __class__(self):
            raise AssertionError("looking for modules asks objects for nothing")

    odd, module = Odd(), torch.nn.ReLU()
    with pytest.raises(AssertionError):
        isinstance(odd, torch.nn.Module)
    assert id(module) in set(map(id, live_instances(torch.nn.Module)))


def test_one_look_answers_until_it_ends():
    first = torch.nn.ReLU()
    with one_look(torch.nn.Module, torch.optim.Optimizer):
        seen = live_instances(torch.nn.Module)
        assert any(each is first for each in seen)
        later = torch.nn.ReLU()
        assert not any(each is later for each in live_instances(torch.nn.Module))
        assert any(
            each is first for each in live_instances(torch.nn.ReLU)
        )  # asked for nothing of this: a look of its own
    assert any(each is later for each in live_instances(torch.nn.Module))
