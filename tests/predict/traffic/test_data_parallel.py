"""The predicted traffic of one step of nn.DataParallel, against numbers worked out by hand."""

from helpers.predict.traffic.data_parallel import data_parallel_traffic, master_link_bytes


def test_data_parallel_sends_the_model_out_and_the_gradients_back_each_step():
    log = data_parallel_traffic(1000, num_devices=4, input_bytes=800, output_bytes=80)
    assert [event.op for event in log.events] == ["scatter", "broadcast", "gather", "scatter", "reduce"]
    assert master_link_bytes(log) == 600 + 3 * 4000 + 60 + 60 + 3 * 4000
