"""A network with its loss, and a whole training step, as networks."""

from typing import Any

from coterie.compute.mindspore.cell import Cell
from coterie.compute.mindspore.nn.optimizers import Optimizer
from coterie.compute.mindspore.transforms import GradOperation, value_and_grad


class WithLossCell(Cell):
    """(data, label) → loss_fn(backbone(data), label)."""

    def __init__(self, backbone: Cell, loss_fn: Cell) -> None:
        super().__init__(auto_prefix=False)
        self._backbone = backbone
        self._loss_fn = loss_fn

    @property
    def backbone_network(self) -> Cell:
        """The network without the loss."""
        return self._backbone

    def construct(self, data: Any, label: Any) -> Any:
        return self._loss_fn(self._backbone(data), label)


class WithEvalCell(Cell):
    """(data, label) → (loss, outputs, label)."""

    def __init__(self, network: Cell, loss_fn: Cell) -> None:
        super().__init__(auto_prefix=False)
        self._network = network
        self._loss_fn = loss_fn

    def construct(self, data: Any, label: Any) -> Any:
        outputs = self._network(data)
        return self._loss_fn(outputs, label), outputs, label


class TrainOneStepCell(Cell):
    """One step of training: the loss of ``network`` on the inputs, after which ``optimizer`` has written its
    parameters. sens: the sensitivity of the loss; the optimizer's loss_scale undoes it.
    """

    def __init__(self, network: Cell, optimizer: Optimizer, sens: float = 1.0) -> None:
        super().__init__(auto_prefix=False)
        self.network = network
        self.optimizer = optimizer
        self.sens = sens

    def construct(self, *inputs: Any) -> Any:
        weights = self.optimizer.parameters
        if self.sens == 1.0:
            loss, gradients = value_and_grad(self.network, None, weights)(*inputs)
        else:
            loss = self.network(*inputs)
            gradients = GradOperation(get_by_list=True, sens_param=True)(self.network, weights)(*inputs, self.sens)
        self.optimizer(gradients)
        return loss
