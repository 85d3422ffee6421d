"""Messages that researchers make in Python as well as send."""

from typing import TYPE_CHECKING, Any, Self

from pydantic import ValidationError

from coterie.protocol.wire import Request, message_error


class ByHand(Request):
    """A message that a researcher makes in Python: what is wrong with it is said as by any other part of coterie.

    Raises errors.InputError (``message_invalid``).
    """

    if not TYPE_CHECKING:  # a type checker goes by the fields

        def __init__(self, **fields: Any) -> None:
            try:
                self.__pydantic_validator__.validate_python(fields, self_instance=self)
            except ValidationError as error:
                raise message_error(type(self), error) from None

        # Messages that are read from JSON, or stand inside others, are not made through here.
        __init__.__pydantic_base_init__ = True

    def but(self, **changes: Any) -> Self:
        """The same with other values of these fields, checked like any. Raises errors.InputError."""
        return type(self)(**{**{name: getattr(self, name) for name in self.model_fields_set}, **changes})
